#!/usr/bin/env bash
# Print the home of a Java that Spark runs on: 17 or 21. Installs one when it may.
#
# Prints nothing when there is none and none can be installed: the tests that need it are then
# skipped, except with CI=true, where that is an error. Everything else goes to stderr.
set -euo pipefail

package=openjdk-17-jre-headless

is_supported() {
    local version
    version="$("$1/bin/java" -version 2>&1)" || return 1
    [[ "$version" =~ version\ \"(17|21)[.\"] ]]
}

find_java() {
    local home on_path
    on_path="$(command -v java || true)"
    for home in "${JAVA_HOME:-}" \
        "${on_path:+$(dirname "$(dirname "$(readlink -f "$on_path")")")}" \
        /usr/lib/jvm/*-17-* /usr/lib/jvm/*-21-* \
        /Library/Java/JavaVirtualMachines/*/Contents/Home; do
        if [[ -n "$home" && -x "$home/bin/java" ]] && is_supported "$home"; then
            echo "$home"
            return 0
        fi
    done
    return 1
}

find_java && exit 0

if [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    echo "Installing $package for the Spark tests ..." >&2
    if apt-get update -qq >&2 &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >&2; then
        find_java && exit 0
    fi
fi

cat >&2 <<'MESSAGE'
Spark needs Java 17 or 21, and found neither.
Hint: on Debian and Ubuntu, apt-get install openjdk-17-jre-headless
      on macOS, brew install openjdk@17
      or set JAVA_HOME to one you have.
MESSAGE
[[ "${CI:-}" != true ]]
