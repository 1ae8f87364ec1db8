"""Reading a model leaves nothing in the folder the user stands in."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mujoco")

# MuJoCo warns of this attribute when the model is compiled.
MODEL = """
<mujoco>
  <compiler settotalmass="5"/>
  <worldbody>
    <body name="base"><freejoint/><geom size="0.1"/>
      <body pos="0 0 -0.2"><joint name="hip" range="-1 1"/><geom size="0.05"/></body>
    </body>
  </worldbody>
</mujoco>
"""

READERS = {
    "sim2sim": "from sim2sim.model import read_spec; read_spec(path).compile()",
    "import": "from export.importers.model import read_model_facts; read_model_facts(str(path))",
    "train": "from trainer.envs.model import joint_axes; "
    "from types import SimpleNamespace as Robot; "
    "joint_axes(Robot(xml_path=path, profile=Robot(base_body='base', joints=[])))",
}


@pytest.mark.parametrize("reader", [*READERS, "mujoco alone"])
def test_no_log_file_appears(tmp_path: Path, reader: str) -> None:
    (tmp_path / "robot.xml").write_text(MODEL)
    alone = "import mujoco; mujoco.MjModel.from_xml_path(str(path))"
    # A process of its own: whoever came first in this one has set the handler for all.
    code = f"from pathlib import Path; path = Path('robot.xml'); {READERS.get(reader, alone)}"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
    # The last reader shows that there is something to be quiet about.
    assert (tmp_path / "MUJOCO_LOG.TXT").exists() == (reader == "mujoco alone")
