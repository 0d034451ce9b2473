#!/bin/sh
# Makes $VENV with $PYTHON (python3 if empty), or says in one line why it cannot.
# An environment that works is kept, unless $PYTHON asks for another version.
set -eu
export DEBIAN_FRONTEND=noninteractive
python=${PYTHON:-python3}
venv=${VENV:-.venv}

stop() {
    echo "vizoo: error: $*" >&2
    exit 2
}

[ -n "${PYTHON:-}" ] || ! "$venv/bin/python" -c pass 2>/dev/null || exit 0

command -v "$python" >/dev/null 2>&1 ||
    stop "no Python called '$python': install Python 3.10 to 3.13, or name one with PYTHON=..."

version='import sys; print("%d.%d" % sys.version_info[:2])'
wanted=$("$python" -c "$version") || stop "'$python' does not run: name another with PYTHON=..."
case $wanted in
3.1[0-3]) ;;
*) stop "'$python' is Python $wanted, vizoo needs 3.10 to 3.13: name another with PYTHON=..." ;;
esac

if [ -x "$venv/bin/python" ] && found=$("$venv/bin/python" -c "$version" 2>/dev/null); then
    [ "$found" = "$wanted" ] || stop "$venv was made with Python $found, '$python' is $wanted:" \
        "remove $venv, or name another folder with VENV=..."
    exit 0
fi

# Debian splits ensurepip off into a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package=python$wanted-venv
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing $package"
        { apt-get update -q && apt-get install -qy --no-install-recommends "$package"; } \
            >/dev/null 2>&1 || true
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        stop "'$python' cannot make virtual environments: apt-get install $package"
fi

echo "making $venv with Python $wanted"
rm -rf "$venv"
"$python" -m venv "$venv" || {
    rm -rf "$venv"
    stop "'$python -m venv $venv' failed: see above"
}
