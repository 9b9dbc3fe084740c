"""What `PreTrainedConfig().to_dict()` writes in this version of transformers: keys that any `config.json` may have.

    python base_keys.py

adds them to models/tests/base_keys.json, under the version. The file has those of 5.24.0 and of 4.57.1, in which the class has most keys.
"""

import json
from pathlib import Path

import transformers

OUT = Path(__file__).parents[2] / "models/tests/base_keys.json"

known = json.loads(OUT.read_text()) if OUT.exists() else {}
known[transformers.__version__] = transformers.PretrainedConfig().to_dict()
OUT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
