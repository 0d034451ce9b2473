#!/bin/sh
# Installs the shared libraries that Open3D's wheel loads and a bare Debian lacks. Without them
# vizoo works, except for what Open3D does: so this says what is missing and never fails.
set -u
export DEBIAN_FRONTEND=noninteractive

# library file, then the Debian package that brings it, as in common/system.py
libraries="libusb-1.0.so.0:libusb-1.0-0 libGL.so.1:libgl1 libEGL.so.1:libegl1 libX11.so.6:libx11-6
libgomp.so.1:libgomp1 libidn2.so.0:libidn2-0 libudev.so.1:libudev1"

[ "$(uname -s)" = Linux ] || exit 0

# Asks the dynamic loader itself, as the import of Open3D will.
missing() {
    for pair in $libraries; do
        "${PYTHON:-python3}" -c "import ctypes; ctypes.CDLL('${pair%%:*}')" 2>/dev/null ||
            printf '%s ' "${pair#*:}"
    done
}

packages=$(missing)
[ -n "$packages" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing system libraries for Open3D, up to a minute: $packages"
    # shellcheck disable=SC2086  # a list of packages
    {
        apt-get install -qy --no-install-recommends $packages ||
            { apt-get update -q && apt-get install -qy --no-install-recommends $packages; }
    } >/dev/null 2>&1
    packages=$(missing)
fi
[ -z "$packages" ] ||
    echo "vizoo: Open3D needs system libraries to load: apt-get install $packages" >&2
exit 0
