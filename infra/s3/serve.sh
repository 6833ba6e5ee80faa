#!/usr/bin/env bash
# An S3 server for development on this machine, in the foreground; what it stores in DIR outlives it.
#   infra/s3/serve.sh [DIR] [PORT]      then, in another shell, the four exports it prints
set -euo pipefail
dir=${1:-outputs/s3} port=${2:-8333}
bin=${LORA_RL_VENV:-$(dirname "$0")/../../.venv}/bin

export AWS_ACCESS_KEY_ID=${AWS_ACCESS_KEY_ID:-lora-rl} AWS_SECRET_ACCESS_KEY=${AWS_SECRET_ACCESS_KEY:-development}
cat <<TEXT
export AWS_ENDPOINT_URL=http://127.0.0.1:$port
export AWS_ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID
export AWS_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY
export AWS_DEFAULT_REGION=us-east-1
# store: s3://lora-rl
TEXT

mkdir -p "$dir"
exec "$bin/weed" mini -bucket=lora-rl -dir="$dir" -ip=127.0.0.1 -ip.bind=127.0.0.1 -s3.port="$port" \
  -s3.port.iceberg=0 -s3.port.lance=0 -webdav=false -admin.ui=false -master.telemetry=false
