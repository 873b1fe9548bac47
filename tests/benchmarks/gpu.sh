#!/usr/bin/env bash
# Within 6 minutes on one GPU, as lines of JSON: pairs per second of the cross-encoder against sentence-transformers, and
# where vLLM is installed tokens per second of judging against plain vLLM. The first part needs only torch, transformers,
# sentence-transformers and numpy. PYTHON=… names the interpreter; --tiny is the form for a CPU, which tests run.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python}
export TOKENIZERS_PARALLELISM=true HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1

timeout 200 "$python" -m tests.benchmarks.gpu_scoring "$@"
if "$python" -c 'import importlib.util as u; raise SystemExit(u.find_spec("vllm") is None)'; then
    timeout 150 "$python" -m tests.benchmarks.gpu_judging "$@"
else
    echo '{"benchmark": "judging", "left_out": "vllm is not installed"}'
fi
