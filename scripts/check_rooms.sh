#!/usr/bin/env bash
# Checks that each room includes only what it may, and that every header compiles alone.
#
#   room             system libraries                      our headers
#   server/          uv, microhttpd, jansson               server/, engine/*.h (public) and
#                                                          engine/model/model.h; main.c also the
#                                                          backends, bench* also random weights,
#                                                          tune* also the decoder
#   engine/          jansson and pcre2, where needed       engine/ but not engine/cpu/
#   engine/cpu/      none                                  engine/cpu/ and what all may include
#   cuda/            CUDA                                  cuda/ and what all may include
#   all                                                    engine/backend.h, engine/error.h,
#                                                          engine/sizes.h
#
# Debian puts every library's headers into /usr/include, so a wrong include compiles; only this
# notices.
# check_rooms.sh [ROOT]: the tree to check, by default this one.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

n_bad=0
bad() {
    echo "$*" >&2
    n_bad=$((n_bad + 1))
}

sources() {
    find engine server cuda -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) \
        2>/dev/null | sort
}

# libc and POSIX are everyone's; other libraries belong to rooms.
library_of() {
    case $1 in
    uv.h | uv/*) echo uv ;;
    microhttpd.h) echo microhttpd ;;
    jansson.h) echo jansson ;;
    pcre2.h) echo pcre2 ;;
    utf8proc.h) echo utf8proc ;;
    cuda*.h | cublas*.h | cooperative_groups* | cuda/* | mma.h | nvtx* | cutlass/* | cute/*)
        echo cuda ;;
    cblas*.h | openblas*) echo blas ;;
    cmocka.h) echo cmocka ;;
    *) echo libc ;;
    esac
}

# allowed FILE LIBRARY-OR-HEADER: the table above, as "file:include" patterns.
allowed_library() {
    case $1:$2 in
    *:libc | server/*:uv | server/*:microhttpd | server/*:jansson | cuda/*:cuda) return 0 ;;
    engine/cpu/*:blas) return 0 ;;
    engine/cpu/*) return 1 ;;
    engine/model/*:jansson | engine/tokenizer/*:jansson) return 0 ;;
    engine/json_arena.[ch]:jansson) return 0 ;;
    engine/filters.c:jansson | engine/patterns.c:jansson | engine/provenance.c:jansson) return 0 ;;
    engine/json_guard.[ch]:jansson) return 0 ;;
    engine/tokenizer/*:pcre2 | engine/tokenizer/*:utf8proc) return 0 ;;
    esac
    return 1
}

allowed_header() {
    case $2 in
    engine/backend.h | engine/error.h | engine/sizes.h) return 0 ;;
    esac
    case $1:$2 in
    server/main.c:engine/cpu/cpu.h | server/main.c:cuda/cuda.h) return 0 ;;
    server/bench*:engine/model/random_weights.h) return 0 ;;
    server/tune*:engine/model/decoder.h) return 0 ;;
    server/*:engine/*/*)
        [ "$2" = engine/model/model.h ] ;;
    server/*:server/* | server/*:engine/*) return 0 ;;
    engine/cpu/*:engine/cpu/*) return 0 ;;
    engine/cpu/*) return 1 ;;
    engine/*:engine/cpu/*) return 1 ;;
    engine/*:engine/*) return 0 ;;
    cuda/*:cuda/*) return 0 ;;
    *) return 1 ;;
    esac
}

check_file() {
    local file=$1 line form name
    while IFS= read -r line; do
        name=${line#*[<\"]}
        name=${name%%[>\"]*}
        form=system
        if [[ $line == *\"* ]]; then form=ours; fi
        if [ $form = ours ]; then
            # Ours are named from the root, so that the room shows.
            [ -f "$name" ] || bad "$file: \"$name\" is no file of this tree, seen from its root"
            allowed_header "$file" "$name" || bad "$file: this room may not include \"$name\""
        else
            allowed_library "$file" "$(library_of "$name")" ||
                bad "$file: this room may not include <$name>"
        fi
    done < <(grep -E '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]' "$file" || true)
}

has_cuda_headers() {
    echo '#include <cublasLt.h>' | "${CC:-cc}" -fsyntax-only -x c - 2>/dev/null
}

check_header_alone() {
    case $1 in
    cuda/*.cuh) return 0 ;; # needs the CUDA compiler, which builds it anyway
    cuda/*.h) # those that include CUDA's own need them here
        if grep -qE '^#include <(cuda|cublas)' "$1" && ! has_cuda_headers; then return 0; fi ;;
    esac
    "${CC:-cc}" -std=gnu17 -Wall -Wextra -Werror -Wno-psabi -fsyntax-only -I. -x c "$1" ||
        bad "$1: does not compile alone"
}

while IFS= read -r file; do
    check_file "$file"
    case $file in *.h | *.cuh) check_header_alone "$file" ;; esac
done < <(sources)

[ -z "$(sources)" ] && bad "no sources found in $PWD"
if [ $n_bad -gt 0 ]; then
    echo "$n_bad room rules broken" >&2
    exit 1
fi
