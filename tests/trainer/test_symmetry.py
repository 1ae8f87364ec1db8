"""Reflections: what is one, and what is refused."""

import pytest
import torch

from trainer.symmetry import Mirror, MirrorTable

SWAP = Mirror.of([1, 0, 2], [1.0, 1.0, -1.0])


def test_apply_by_hand_and_twice() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert SWAP.apply(x).tolist() == [[2.0, 1.0, -3.0], [5.0, 4.0, -6.0]]
    assert torch.equal(SWAP.apply(SWAP.apply(x)), x)


@pytest.mark.parametrize(
    ("index", "sign", "message"),
    [
        ([1, 0, 2], [1.0, -1.0, 1.0], "entry 0 comes from 1"),  # one wrong sign
        ([1, 2, 0], [1.0, 1.0, 1.0], "applied twice this is not the identity"),  # a rotation
        ([0, 0, 2], [1.0, 1.0, 1.0], "entry 1 comes from 0"),  # no permutation
        ([0, 1, 3], [1.0, 1.0, 1.0], r"index\[2\] = 3 is outside 0 ... 2"),
        ([0, 1, 2], [1.0, 0.5, 1.0], r"sign\[1\] = 0.5"),
        ([0, 1], [1.0, 1.0, 1.0], "index has shape"),
    ],
)
def test_what_is_no_reflection_is_refused(
    index: list[int], sign: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Mirror.of(index, sign)


@pytest.mark.parametrize(
    ("dims", "num_actions", "message"),
    [
        ({"policy": 3, "critic": 5}, 3, "'critic' has no mirror"),
        ({"policy": 4}, 3, "'policy' has 3 entries and the environment 4"),
        ({"policy": 3}, 2, "the action has 3 entries and the environment 2"),
    ],
)
def test_a_table_of_another_robot_is_refused(
    dims: dict[str, int], num_actions: int, message: str
) -> None:
    table = MirrorTable(obs={"policy": SWAP}, action=SWAP)
    table.check({"policy": 3}, 3)
    with pytest.raises(ValueError, match=message):
        table.check(dims, num_actions)
