"""Importers: a foreign policy and the files that come with it become a policy file.

One file per foreign format (`unitree_rl_gym.py`, `unitree_deploy.py`, `rl_sar.py`, ...) states what
that format says; everything else is shared:

    reading.py      files of strangers into plain values: sizes, types, tags, numbers
    answers.py      what the user says, as paths of a contract
    sheet.py        what is known about a contract so far, and which source each field has
    model.py        what the MuJoCo model says, and the checks against it
    shorthand.py    the short way to write observations, actions and commands
    assemble.py     a sheet and a graph become a contract (blocks.py its terms); checks.py, is it
                    this robot's; provenance.py, where each field comes from
    graph.py        foreign ONNX: weights inlined, bounded (bounds.py), inputs and states found
    torchscript.py  TorchScript to ONNX (walker.py), with its hidden state as inputs and outputs
    motion_graph.py a motion inside the graph and the observation terms it gives
    golden.py       a recorded run, replayed; gate.py: the same actions as the foreign network
    pipeline.py     all of it in order

Foreign files are data. Nothing in them is executed except the network's graph.
"""
