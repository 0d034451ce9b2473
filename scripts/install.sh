#!/bin/sh
# Installs the checkout into $VENV by pip, in sight: what comes, how far it is, how long it took.
#
#   sh scripts/install.sh .            or with extras: sh scripts/install.sh ".[test]"
#
# pip's own words are kept back and shown in full where it fails.
set -u
what=${1:-.}
venv=${VENV:-.venv}
every=${EVERY:-30} # seconds between two lines

# pip's temporary files lie here, so that they can be measured, and removed after a kill. pip
# changes folders, so the path is absolute.
work=$(CDPATH= cd -- "$venv" && pwd)/.installing || exit 2
log=$work/pip.log
pip=

clean() {
    rm -rf "$work"
}

# The shell makes background commands deaf to Ctrl+C, so pip gets another signal.
stop() {
    trap '' INT TERM HUP
    [ -z "$pip" ] || kill -TERM "$pip" 2>/dev/null
    [ -z "$pip" ] || wait "$pip" 2>/dev/null
    clean
    echo "vizoo: installation stopped; the same command goes on with it" >&2
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop 129' HUP

# What pip has fetched lies inside the environment until it is done.
progress() {
    du -sk "$work" >"$work/fetched" 2>/dev/null
    du -sk "$venv" 2>/dev/null | awk -v g=976562.5 '
        FNR == NR { fetched = $1 }
        { all = $1 }
        END { printf "%.1f GB fetched, %.1f GB installed", fetched / g, (all - fetched) / g }
    ' "$work/fetched" -
}

duration() {
    if [ "$1" -lt 60 ]; then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi
}

begin=$(date +%s)
PYTHON=$venv/bin/python sh "$(dirname "$0")/system-libraries.sh"

clean
mkdir -p "$work/tmp" || exit 2
if [ -e "$venv/.installed" ]; then
    echo "installing into $venv what is not there yet"
else
    echo "installing into $venv: up to 7 GB, most of it PyTorch's; about two minutes," \
        "longer on a slow line"
fi
# What is used is compiled at its first import, which takes a third of the time that all would;
# but not where Python may not keep it.
bytecode=--no-compile
[ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || bytecode=--compile
TMPDIR=$work/tmp "$venv/bin/python" -m pip install --quiet $bytecode -e "$what" >"$log" 2>&1 &
pip=$!

ticks=0
said=
while kill -0 "$pip" 2>/dev/null; do
    sleep 0.2 2>/dev/null || sleep 1  # some take whole seconds alone
    ticks=$((ticks + 1))
    [ $((ticks % (5 * every))) = 0 ] || continue
    # A line is slow, or a server does not answer: pip says so in its last words.
    words=$(tail -n 1 "$log")
    [ "$words" != "$said" ] || words=
    said=${words:-$said}
    echo "  ... $(duration $(($(date +%s) - begin))): $(progress)${words:+; $words}"
done
wait "$pip"
code=$?
pip=
if [ "$code" != 0 ]; then
    cat "$log" >&2
    echo "vizoo: error: pip could not install $what into $venv: see above" >&2
else
    # pip tells of packages that do not fit together without failing.
    grep '^ERROR' "$log" >&2
    echo "installed in $(duration $(($(date +%s) - begin)))"
fi
clean
exit "$code"
