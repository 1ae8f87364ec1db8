"""What configurations for rsl_rl may ask for and the runner does not have, in one table."""

from __future__ import annotations

MISSING: dict[str, str] = {
    "deterministic": "an actor without a distribution cannot explore",
    "distillation": "trainer.rsl_rl_distillation.DistillationRunner is for that",
    "amp": "there are no adversarial motion priors",
    "optimizer": "there is only Adam",
    "two_activations": "actor and critic share one activation",
    "shared_cnns": "actor and critic have convolutions of their own",
    "two_cnns": "actor and critic convolve a group of images alike",
    "two_memories": "the critic has the recurrent layers of the actor, or none",
    "activation": "there is no such activation",
    "custom_class": "only classes of rsl_rl are known",
    "cuda_graphs": "compilation with CUDA graphs, as rsl_rl refuses it as well",
}
"""Features by name, with what is said where a configuration asks for one.

Whoever builds a feature takes its entry out and maps its settings in `trainer.compat.settings`.
"""

CLASSES: dict[str, str] = {
    "OnPolicyRunner": "",
    "PPO": "",
    "ActorCritic": "",
    "MLPModel": "",
    "GaussianDistribution": "",
    "ActorCriticRecurrent": "recurrent",
    "RNNModel": "recurrent",
    "ActorCriticCNN": "convolutional",
    "CNNModel": "convolutional",
    "HeteroscedasticGaussianDistribution": "state_dependent_std",
    "BetaDistribution": "beta",
    "DistillationRunner": "distillation",
    "Distillation": "distillation",
    "StudentTeacher": "distillation",
    "StudentTeacherRecurrent": "distillation",
    "AMPPPO": "amp",
    "AMPOnPolicyRunner": "amp",
}
"""Classes that configurations name, and the feature each one is; the empty one is always there."""
