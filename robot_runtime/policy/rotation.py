"""Rotations by unit quaternions, (w, x, y, z), body to world. Any leading batch shape."""

from __future__ import annotations

from array_api_compat import array_namespace, is_numpy_namespace, is_torch_namespace

from robot_runtime.policy.state import Array


def rotate(quat: Array, vec: Array) -> Array:
    """Turn body vectors into the world frame, v + 2 w (u x v) + 2 u x (u x v).

    Args:
        quat: Unit quaternions w, x, y, z, body to world, shape ``(..., 4)``.
        vec: Vectors in the body frame, shape ``(..., 3)``.

    Returns:
        The vectors in the world frame, shape ``(..., 3)``.
    """
    axis = quat[..., 1:4]
    twice = 2.0 * cross(axis, vec)
    return vec + quat[..., 0:1] * twice + cross(axis, twice)


def rotate_inverse(quat: Array, vec: Array) -> Array:
    """Turn world vectors into the body frame: `rotate` by the conjugate.

    Args:
        quat: Unit quaternions w, x, y, z, body to world, shape ``(..., 4)``.
        vec: Vectors in the world frame, shape ``(..., 3)``.

    Returns:
        The vectors in the body frame, shape ``(..., 3)``.
    """
    axis = quat[..., 1:4]
    twice = 2.0 * cross(vec, axis)
    return vec + quat[..., 0:1] * twice + cross(twice, axis)


def projected_gravity(quat: Array) -> Array:
    """The direction of gravity seen from the body, R^T (0, 0, -1).

    Args:
        quat: Unit quaternions w, x, y, z, body to world, shape ``(..., 4)``.

    Returns:
        Unit vectors, body frame, shape ``(..., 3)``; (0, 0, -1) when upright.
    """
    xp = array_namespace(quat)
    twice = 2.0 * quat
    w, x, y = quat[..., 0], quat[..., 1], quat[..., 2]
    x2, y2, z2 = twice[..., 1], twice[..., 2], twice[..., 3]
    return xp.stack([w * y2 - x * z2, -w * x2 - y * z2, x * x2 + y * y2 - 1.0], axis=-1)


def multiply(left: Array, right: Array) -> Array:
    """Hamilton product, the rotation ``right`` followed by ``left``.

    Args:
        left: Quaternions w, x, y, z, shape ``(..., 4)``.
        right: Quaternions w, x, y, z, shape ``(..., 4)``.

    Returns:
        Quaternions w, x, y, z, shape ``(..., 4)``.
    """
    xp = array_namespace(left, right)
    a, b, c, d = left[..., 0], left[..., 1], left[..., 2], left[..., 3]
    w, x, y, z = right[..., 0], right[..., 1], right[..., 2], right[..., 3]
    return xp.stack(
        [
            a * w - b * x - c * y - d * z,
            a * x + b * w + c * z - d * y,
            a * y - b * z + c * w + d * x,
            a * z + b * y - c * x + d * w,
        ],
        axis=-1,
    )


def heading(quat: Array) -> Array:
    """Yaw of the body's x axis in the world, [rad], shape ``(...)``, in (-pi, pi]."""
    xp = array_namespace(quat)
    w, x, y, z = quat[..., 0], quat[..., 1], quat[..., 2], quat[..., 3]
    return xp.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def euler_xyz(quat: Array) -> Array:
    """Roll, pitch and yaw, the rotation being yaw after pitch after roll about fixed axes.

    Args:
        quat: Unit quaternions w, x, y, z, body to world, shape ``(..., 4)``.

    Returns:
        Angles, [rad], shape ``(..., 3)``: roll and yaw in (-pi, pi], pitch in [-pi/2, pi/2].
    """
    xp = array_namespace(quat)
    w, x, y, z = quat[..., 0], quat[..., 1], quat[..., 2], quat[..., 3]
    roll = xp.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))
    sine = 2.0 * (w * y - x * z)
    # Rounding may leave [-1, 1] by one unit in the last place.
    pitch = xp.asin(xp.minimum(xp.maximum(sine, -xp.ones_like(sine)), xp.ones_like(sine)))
    return xp.stack([roll, pitch, heading(quat)], axis=-1)


def cross(left: Array, right: Array) -> Array:
    """Cross product over the last axis, shape ``(..., 3)``."""
    xp = array_namespace(left, right)
    if is_numpy_namespace(xp):
        # NumPy's own takes twice as long for one robot.
        a, b, c = left[..., 0], left[..., 1], left[..., 2]
        x, y, z = right[..., 0], right[..., 1], right[..., 2]
        return xp.stack([b * z - c * y, c * x - a * z, a * y - b * x], axis=-1)
    if left.ndim != right.ndim:
        left, right = xp.broadcast_arrays(left, right)
    if is_torch_namespace(xp):
        # The same product without the checks of the array API, which cost more than it.
        return xp.cross(left, right, dim=-1)
    return xp.linalg.cross(left, right, axis=-1)
