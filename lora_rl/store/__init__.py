"""The artifact store and the records in it. Importing this is cheap: no torch, ray, vllm, prefect or s3fs.

artifact_store.py blobs and exclusive documents, over objects.py: local_objects.py and s3_objects.py (s3_errors.py reads
refusals); run_records.py the layout of a run; records.py a step's record and fingerprint; prune.py what is not needed;
adapters.py PEFT directories; refs.py what passes between tasks; names.py, canonical.py, versions.py.
"""

from lora_rl.store.adapters import download_adapter, promote_adapter, promoted_uri
from lora_rl.store.artifact_store import ArtifactStore, open_store
from lora_rl.store.canonical import canonical_json, sha256_of
from lora_rl.store.names import check_name
from lora_rl.store.records import STEPS, Fork, StepRecord, fingerprint, utc_now
from lora_rl.store.refs import AdapterRef, BlobRef
from lora_rl.store.run_records import START, RunRecords
from lora_rl.store.versions import versions

__all__ = [
    "START",
    "STEPS",
    "AdapterRef",
    "ArtifactStore",
    "BlobRef",
    "Fork",
    "RunRecords",
    "StepRecord",
    "canonical_json",
    "check_name",
    "download_adapter",
    "fingerprint",
    "open_store",
    "promote_adapter",
    "promoted_uri",
    "sha256_of",
    "utc_now",
    "versions",
]
