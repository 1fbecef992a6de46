#!/bin/sh
# Sets up .venv for this checkout: finds a Python, picks MLX's backend for this machine, installs.
#   setup.sh backend                 print the extra that fits this machine: none, cpu, cuda12, cuda13
#   setup.sh install BACKEND STAMP   make .venv ready, then write STAMP (never after a failure)
set -eu
cd "$(dirname "$0")/.."

VENV=.venv
BACKENDS="mlx-cpu mlx-cuda-12 mlx-cuda-13"

fail() {
    echo "setup: $*" >&2
    exit 1
}

# MLX's CUDA 13 wheels need driver 580, the CUDA 12 ones driver 550.
backend() {
    if [ "$(uname -s)" = Darwin ]; then
        echo none
        return
    fi
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) ||
        driver=
    major=${driver%%.*}
    case $major in
        '' | *[!0-9]*) echo cpu ;;
        *) if [ "$major" -ge 580 ]; then echo cuda13; elif [ "$major" -ge 550 ]; then echo cuda12
           else echo cpu; fi ;;
    esac
}

recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# The first Python >= 3.11 that can make a virtual environment with pip in it.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        recent "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer; name one that is"
        echo "$PYTHON"
        return
    fi
    old=
    for python in python3 python3.14 python3.13 python3.12 python3.11 python; do
        recent "$python" || continue
        old=$python
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    [ -n "$old" ] || fail "no Python 3.11 or newer on PATH; install one, or set PYTHON=/path/to/python3"
    echo "$old"
}

make_venv() {
    if recent "$VENV/bin/python" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python)
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv --clear "$VENV"
    elif "$python" -c 'import pip, venv' 2>/dev/null; then
        # Debian splits ensurepip off; a pip of the system can fill the environment.
        "$python" -m venv --clear --without-pip "$VENV"
        "$python" -m pip --python "$VENV/bin/python" install --quiet pip
    else
        fail "$python has neither ensurepip nor pip; install them (Debian, Ubuntu:" \
            "apt install python3-venv), or set PYTHON to another Python >= 3.11"
    fi
}

install() {
    case $1 in
        none) extras=dev ;;
        cpu | cuda12 | cuda13) extras=$1,dev ;;
        *) fail "EXTRA=$1 is unknown; allowed: none, cpu, cuda12, cuda13" ;;
    esac
    export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1
    echo "setup: $VENV with the extras $extras (the first time this downloads a few hundred MB)"
    rm -f "$VENV"/ready-*
    make_venv
    # Backends share files: another one goes first, and takes this one's files with it if both were there.
    others=
    for name in $BACKENDS; do
        if [ "$name" != "$(wheel_of "$1")" ] && "$VENV/bin/python" -m pip show --quiet "$name" 2>/dev/null
        then
            others="$others $name"
        fi
    done
    if [ -n "$others" ]; then
        "$VENV/bin/python" -m pip uninstall --yes $others $(wheel_of "$1")
    fi
    "$VENV/bin/python" -m pip install --editable ".[$extras]" ||
        fail "pip could not install the packages (its message is above); run the same command again" \
            "once the cause is gone"
    pwd >"$2"
}

wheel_of() {
    case $1 in
        cpu) echo mlx-cpu ;;
        cuda12) echo mlx-cuda-12 ;;
        cuda13) echo mlx-cuda-13 ;;
    esac
}

case ${1:-} in
    backend) backend ;;
    install) install "$2" "$3" ;;
    *) fail "say 'setup.sh backend' or 'setup.sh install BACKEND STAMP'" ;;
esac
