"""A model whose owner gives default sampling."""

import json
import shutil
from pathlib import Path
from typing import Any

import starter

VALUES: dict[str, Any] = dict(
    temperature=0.6, top_k=40, top_p=0.9, repetition_penalty=1.05
)
TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."
CHAT = [{"role": "user", "content": TALE}]


def owned(folder: Path, **settings: Any) -> Path:
    """Save the small target with generation settings: these, or VALUES."""
    shutil.copytree(starter.target(), folder)
    settings = settings or {"do_sample": True, **VALUES}
    text = json.dumps({"eos_token_id": 0, **settings})
    (folder / "generation_config.json").write_text(text, "utf-8")
    return folder
