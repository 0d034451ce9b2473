#!/bin/sh
# Trains a network whose weights ship, or goes on with it: scripts/train_weights.sh NAME [options]
#
#   --device cuda    on a GPU (default: cpu, one core, niced)
#   --minutes N      stop after N minutes, with a checkpoint
#   --steps N        stop when N steps are done in all
#   --stock DIR      folder with textures/, meshes/ and panoramas/ that worlds are made of
#
# NAME is that of a configuration, configs/*/NAME_world.yaml. All lies in $VIZOO_TRAININGS/NAME (default:
# ~/.local/share/vizoo/trainings): a clone of this checkout's last commit at the first start, so that
# the code may change meanwhile, its configuration, and the checkpoint that the next start goes on
# from. Where $OUT names a folder, the checkpoint is copied there at the end.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
python=$(command -v "$python" || command -v python3)
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
for number in $minutes $steps; do
    case $number in *[!0-9]* | 0*) stop "--minutes and --steps take whole numbers from 1" ;; esac
done

absolute() { case $1 in /*) echo "$1" ;; *) echo "$(pwd)/$1" ;; esac; }
root=$(absolute "${VIZOO_TRAININGS:-$HOME/.local/share/vizoo/trainings}/$name")
out=${OUT:+$(absolute "$OUT")}
for part in ${stock:+textures meshes panoramas}; do
    [ -d "$stock/$part" ] || stop "--stock $stock: no folder $part/ in it"
done
[ -z "$stock" ] || stock=$(cd "$stock" && pwd)
if [ ! -d "$root/vizoo" ]; then
    [ -n "$stock" ] || stop "--stock DIR (or VIZOO_STOCK) names the folder with textures/, meshes/" \
        "and panoramas/ that worlds are made of"
    mkdir -p "$root" && rm -rf "$root/.vizoo"
    git clone -q "$here" "$root/.vizoo"
    cp "$root/.vizoo/${config#"$here"/}" "$root/train.yaml"
    echo "$stock" >"$root/stock"
    mv "$root/.vizoo" "$root/vizoo"
fi
[ -z "$stock" ] || [ "$stock" = "$(cat "$root/stock")" ] ||
    stop "--stock $stock: this training began with $(cat "$root/stock"); remove $root to begin anew"
VIZOO_STOCK=$(cat "$root/stock")
export VIZOO_STOCK PYTHONPATH="$root"

set -- fit --config "$root/train.yaml" --trainer.default_root_dir "$root"
checkpoint=$(ls -t "$root"/lightning_logs/version_*/checkpoints/last.ckpt 2>/dev/null | head -n 1)
[ -z "$checkpoint" ] || set -- "$@" --ckpt_path "$checkpoint"
[ -z "$steps" ] || set -- "$@" --trainer.max_steps "$steps"
cd "$root"
if [ "$device" = cuda ]; then
    set -- "$@" --trainer.accelerator gpu --data.workers 8
else
    set -- "$@" --trainer.accelerator cpu
    export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
fi
code=0
${minutes:+timeout --signal=TERM "${minutes}m"} nice -n 10 "$python" -m vizoo "$@" || code=$?
[ "$code" != 124 ] || code=0  # the minutes are over
checkpoint=$(ls -t "$root"/lightning_logs/version_*/checkpoints/last.ckpt 2>/dev/null | head -n 1)
[ -z "$out" ] || [ -z "$checkpoint" ] || cp "$checkpoint" "$out/$name.ckpt"
exit "$code"
