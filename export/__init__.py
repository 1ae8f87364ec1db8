"""From a checkpoint or a foreign policy to a policy file that proves itself."""
