# The part of onnxruntime that is used here; the package ships no types.
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

__version__: str

class ExecutionMode:
    ORT_SEQUENTIAL: ExecutionMode

class GraphOptimizationLevel:
    ORT_ENABLE_ALL: GraphOptimizationLevel

class SessionOptions:
    intra_op_num_threads: int
    inter_op_num_threads: int
    execution_mode: ExecutionMode
    log_severity_level: int
    def add_session_config_entry(self, key: str, value: str) -> None: ...

class RunOptions:
    terminate: bool

class OrtAllocatorType:
    ORT_ARENA_ALLOCATOR: OrtAllocatorType

class OrtMemType:
    DEFAULT: OrtMemType

class OrtMemoryInfo:
    def __init__(
        self, name: str, allocator: OrtAllocatorType, device: int, kind: OrtMemType
    ) -> None: ...

class OrtArenaCfg:
    def __init__(self, limits: dict[str, int]) -> None: ...

def create_and_register_allocator(place: OrtMemoryInfo, config: OrtArenaCfg) -> None: ...

class NodeArg:
    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> list[int | str | None]: ...
    @property
    def type(self) -> str: ...

class OrtValue:
    @staticmethod
    def ortvalue_from_numpy(array: NDArray[Any]) -> OrtValue: ...

class IOBinding:
    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None: ...
    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None: ...

class ModelMetadata:
    @property
    def custom_metadata_map(self) -> dict[str, str]: ...

class InferenceSession:
    def __init__(
        self,
        model: bytes | str,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str] | None = None,
        *,
        disabled_optimizers: Sequence[str] | None = None,
    ) -> None: ...
    def get_inputs(self) -> list[NodeArg]: ...
    def get_outputs(self) -> list[NodeArg]: ...
    def get_modelmeta(self) -> ModelMetadata: ...
    def io_binding(self) -> IOBinding: ...
    def run_with_iobinding(self, binding: IOBinding, options: RunOptions | None = None) -> None: ...
    def run(
        self, outputs: Sequence[str] | None, feed: dict[str, NDArray[Any]]
    ) -> list[NDArray[Any]]: ...
