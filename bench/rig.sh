#!/usr/bin/env bash
# Runs the rows `paths` and `recovery` on two paths of known speed that the kernel throttles, made by
# a script with the verbs up, run, rate and down. Its location is the first argument or RIG_SCRIPT.
#
#   RIG_SCRIPT=/path/to/paths.sh bench/rig.sh
#   bench/rig.sh /path/to/paths.sh recovery
set -euo pipefail
rig=${1:-${RIG_SCRIPT:?set RIG_SCRIPT or name the script as the first argument}}
shift || true
[ $# -gt 0 ] || set -- paths recovery
cd "$(dirname "$0")/.."
cargo build --release -p tensortier-bench --bin store
bench=${CARGO_TARGET_DIR:-target}/release/store
trap '"$rig" down' EXIT
mapfile -t dirs < <("$rig" up fast=600,6 slow=350,4)
given=(--path "${dirs[0]}=600" --path "${dirs[1]}=350")
# The first use of each page of a path that is a file in memory costs more than the throttle does.
"$rig" run -- "$bench" paths "${given[@]}" --seconds 1 > /dev/null
"$rig" run -- "$bench" "$@" "${given[@]}" \
    --slow-command "'$rig' rate slow 35" --slow-mbps 35 --restore-command "'$rig' rate slow 350"
