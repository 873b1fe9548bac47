#!/usr/bin/env bash
# A Ray cluster of two nodes on this machine, for one job: what runs here runs on a real cluster.
#
#   cluster/local_two_nodes.sh configs/demo.yaml output=/absolute/folder
#   CPUS=4 JOB=jobs/rerank.py cluster/local_two_nodes.sh ARGUMENTS OF THE JOB
#
# CPUS is per node (2). Starts a head and a worker node on free loopback ports with a token and a temporary folder of
# their own, submits the job as `ray job submit` would from a laptop, follows it, and stops exactly what it started,
# also on error and Ctrl-C. The exit code is the job's. The logs stay when it fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cpus="${CPUS:-2}"
job="${JOB:-jobs/rerank.py}"
ip=127.0.0.2 # loopback, where Linux answers to all of 127.*; Ray replaces 127.0.0.1 by a network interface's address
fail() { echo "local_two_nodes: $1" >&2; exit 1; }

[[ -x .venv/bin/ray ]] || fail "no .venv here; run: make setup"
# The job runs in Ray's own copy of this folder, which is removed: a relative output would go with it.
[[ " $* " =~ \ output=(/|s3://) ]] || fail "say where the output goes: output=/absolute/folder or output=s3://bucket/prefix"

work="$(mktemp -d "${TMPDIR:-/tmp}/lancer.XXXXXX")" # short: Ray puts sockets below it, whose paths end at 107 bytes
export PATH="$PWD/.venv/bin:$PATH" RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$work/token" RAY_USAGE_STATS_ENABLED=0
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 # a node told to stop waits 30 s for its work otherwise
unset RAY_ADDRESS RAY_AUTH_TOKEN RAY_API_SERVER_ADDRESS
(umask 077 && python -c 'import secrets, sys; sys.stdout.write(secrets.token_hex(32))' >"$RAY_AUTH_TOKEN_PATH")
read -r gcs dashboard client agent1 agent2 < <(python - <<'PY'
import contextlib, socket
with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(5)]
    for each in sockets:
        each.bind(("127.0.0.2", 0))
    print(*(each.getsockname()[1] for each in sockets))
PY
)

roots=()
submitted=

started() { # the processes of our two sessions and all their descendants
  ps -eo pid=,ppid=,sess= | awk -v roots="${roots[*]}" '
    BEGIN { n = split(roots, root, " "); for (i = 1; i <= n; i++) mine[root[i]] = 1 }
    { pid[NR] = $1; parent[NR] = $2; if ($3 in mine) found[$1] = 1 }
    END {
      do { grew = 0
        for (i = 1; i <= NR; i++)
          if (!(pid[i] in found) && ((parent[i] in found) || (parent[i] in mine))) { found[pid[i]] = 1; grew = 1 }
      } while (grew)
      for (p in found) print p
    }'
}

stop() {
  status=$?
  trap '' INT TERM
  trap - EXIT
  echo "local_two_nodes: stopping the two nodes"
  [[ -z "$submitted" ]] || kill -TERM "$submitted" 2>/dev/null || true
  if ((${#roots[@]})); then
    mapfile -t processes < <(started)
    kill -TERM "${roots[@]}" 2>/dev/null || true
    for _ in {1..60}; do # fifteen seconds; then by force
      kill -0 "${processes[@]}" 2>/dev/null || break
      sleep 0.25
    done
    mapfile -t -O "${#processes[@]}" processes < <(started)
    kill -KILL "${processes[@]}" 2>/dev/null || true
    wait "${roots[@]}" 2>/dev/null || true
  fi
  if ((status)); then
    echo "local_two_nodes: failed with $status; the logs are in $work" >&2
  else
    rm -rf "$work"
  fi
  exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Name and address, then arguments of `ray start`. A session of its own, so that Ctrl-C reaches only this script. A folder
# of its own: in a shared one a node removes the job's working folder under the other. Worker ports from 0, that is any:
# both nodes would hand out the same ports of the default range.
start_node() {
  setsid ray start --block --disable-usage-stats --node-ip-address "$2" --temp-dir "$work/$1" --num-cpus "$cpus" \
    --object-store-memory 500000000 --min-worker-port 0 --max-worker-port 0 "${@:3}" >"$work/$1.log" 2>&1 </dev/null &
  roots+=($!)
}

wait_for() { # what, then a command that succeeds when it is there
  local deadline=$((SECONDS + 180))
  while ((SECONDS < deadline)); do
    "${@:2}" 2>/dev/null && return
    for root in "${roots[@]}"; do
      kill -0 "$root" 2>/dev/null || { tail -n 20 "$work"/*.log >&2; fail "a node ended while waiting for $1"; }
    done
    sleep 0.5
  done
  tail -n 20 "$work"/*.log >&2
  fail "no $1 after three minutes"
}

listens() { (exec 3<>"/dev/tcp/$ip/$1") 2>/dev/null; }

is_up() { grep -q "Ray runtime started" "$work/$1.log"; } # its ports listen before it is: Ray gives it 30 s for the rest

two_nodes() { sleep 1 && [[ "$(ray status --address "$ip:$gcs" 2>/dev/null | grep -c "node_")" == 2 ]]; } # asking takes 2 s of a core

echo "local_two_nodes: starting two nodes with $cpus CPUs each"
start_node head "$ip" --head --port "$gcs" --dashboard-host "$ip" --dashboard-port "$dashboard" --ray-client-server-port "$client" \
  --dashboard-agent-listen-port "$agent1"
wait_for "head node" is_up head # before the second starts: two at once may need more than those 30 s
wait_for "job server" listens "$dashboard"
start_node worker 127.0.0.3 --address "$ip:$gcs" --dashboard-agent-listen-port "$agent2"
wait_for "second node" two_nodes

echo "local_two_nodes: submitting $job $*"
ray job submit --address "http://$ip:$dashboard" --working-dir . -- python "$job" "$@" &
submitted=$! # waited for, not run in the foreground: bash answers a signal only between foreground commands
wait "$submitted"
