#!/bin/sh
# Trains a network whose weights ship, or goes on with it: scripts/train_weights.sh NAME [options]
#
#   --device cuda    on a GPU (default: cpu, one core, niced)
#   --minutes N      stop after N minutes, with a checkpoint
#   --steps N        stop after N steps
#   --stock DIR      folder with textures/, meshes/ and panoramas/ that worlds are made of
#
# NAME is that of a configuration, configs/*/NAME_world.yaml. All lies in $VIZOO_TRAININGS/NAME (default:
# ~/.local/share/vizoo/trainings): a clone of this checkout as it was at the first start, so that the
# code may change meanwhile, its configuration, and the checkpoint that the next start goes on from.
# Where $OUT names a folder, the checkpoint is copied there at the end.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
[ -x "$python" ] || python=python3
stop() {
    echo "train_weights: error: $*" >&2
    exit 2
}

device=cpu minutes='' steps='' stock=${VIZOO_STOCK:-} name=''
while [ $# -gt 0 ]; do
    case $1 in
    --device | --minutes | --steps | --stock)
        [ $# -gt 1 ] || stop "$1 needs a value"
        case $1 in
        --device) device=$2 ;;
        --minutes) minutes=$2 ;;
        --steps) steps=$2 ;;
        --stock) stock=$2 ;;
        esac
        shift 2
        ;;
    -*) stop "no option $1; there are --device, --minutes, --steps and --stock" ;;
    *)
        [ -z "$name" ] || stop "one NAME at a time, not $name and $1"
        name=$1
        shift
        ;;
    esac
done
known=$(cd "$here/configs" && ls */*_world.yaml | sed 's|.*/||; s|_world\.yaml$||' | tr '\n' ' ')
[ -n "$name" ] || stop "give a NAME of $known"
config=$(ls "$here"/configs/*/"${name}_world.yaml" 2>/dev/null) ||
    stop "no training '$name'; there are $known"
case $device in cpu | cuda) ;; *) stop "--device $device: choose cpu or cuda" ;; esac
case $minutes$steps in *[!0-9]*) stop "--minutes and --steps take whole numbers" ;; esac

root=${VIZOO_TRAININGS:-$HOME/.local/share/vizoo/trainings}/$name
if [ ! -d "$root/vizoo" ]; then
    [ -n "$stock" ] || stop "--stock DIR (or VIZOO_STOCK) names the folder with textures/, meshes/" \
        "and panoramas/ that worlds are made of"
    [ -d "$stock" ] || stop "--stock $stock: no such folder"
    mkdir -p "$root" && rm -rf "$root/.vizoo"
    git clone -q "$here" "$root/.vizoo"
    cp "$config" "$root/train.yaml"
    (cd "$stock" && pwd) >"$root/stock"
    mv "$root/.vizoo" "$root/vizoo"
fi
VIZOO_STOCK=$(cat "$root/stock")
export VIZOO_STOCK PYTHONPATH="$root"

set -- fit --config "$root/train.yaml" --trainer.default_root_dir "$root"
checkpoint=$(ls -t "$root"/lightning_logs/version_*/checkpoints/last.ckpt 2>/dev/null | head -n 1)
[ -z "$checkpoint" ] || set -- "$@" --ckpt_path "$checkpoint"
[ -z "$minutes" ] || set -- "$@" --trainer.max_time "$(printf '%02d:%02d:%02d:00' \
    $((minutes / 1440)) $((minutes / 60 % 24)) $((minutes % 60)))"
[ -z "$steps" ] || set -- "$@" --trainer.max_steps "$steps"
cd "$root"
if [ "$device" = cuda ]; then
    set -- "$@" --trainer.accelerator gpu --data.workers 8
else
    set -- "$@" --trainer.accelerator cpu
    export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
fi
code=0
nice -n 10 "$python" -m vizoo "$@" || code=$?
checkpoint=$(ls -t "$root"/lightning_logs/version_*/checkpoints/last.ckpt 2>/dev/null | head -n 1)
[ -z "${OUT:-}" ] || [ -z "$checkpoint" ] || cp "$checkpoint" "$OUT/$name.ckpt"
exit "$code"
