#!/bin/sh
# llama.cpp as llama-cpp-python carries it, built with as little as inference needs: a folder for PYTHONPATH.
#     benchmarks/build_peer.sh trim  OUT.tar.gz [SDIST]     the few megabytes of sources that a build reads, to take elsewhere
#     benchmarks/build_peer.sh cuda|vulkan|cpu OUT [SDIST]  the build; SDIST is such a file or a whole source distribution
# Without SDIST it is fetched by pip. CUDA_ARCH (90) names the one architecture; FLAGS adds cmake options, such as
# -DGGML_CUDA_FA=OFF, which halves the time of a CUDA build and leaves out flash attention. Vulkan needs glslc and the
# headers of Vulkan and SPIR-V, new ones: VULKAN_TOOLS is where peer_tools.sh put them. PORTABLE=1 builds for any processor
# with AVX2, in place of this one, and without OpenMP, to take the folder to another machine.
set -eu
what="$1"; out="$2"; sdist="${3:-}"
version="${PEER_VERSION:-0.3.36}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

if [ -z "$sdist" ]; then
    "${PYTHON:-python3}" -m pip download -q --no-deps --no-binary llama-cpp-python -d "$work" "llama-cpp-python==$version"
    sdist="$(ls "$work"/*.tar.gz)"
fi
mkdir "$work/source"
tar xzf "$sdist" -C "$work/source" --strip-components 1
source="$work/source/vendor/llama.cpp"

if [ "$what" = trim ]; then
    for folder in benches ci common conversion docs examples gguf-py grammars media models pocs scripts tests tools \
        ggml/src/ggml-cann ggml/src/ggml-et ggml/src/ggml-hexagon ggml/src/ggml-metal ggml/src/ggml-opencl \
        ggml/src/ggml-openvino ggml/src/ggml-rpc ggml/src/ggml-sycl ggml/src/ggml-virtgpu ggml/src/ggml-webgpu; do
        rm -rf "${source:?}/$folder"
    done
    tar czf "$out" -C "$work" source/llama_cpp source/vendor
    exit
fi

case "$what" in
    cuda) backend="-DGGML_CUDA=ON -DGGML_CUDA_NCCL=OFF -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCH:-90}" ;;
    vulkan) backend="-DGGML_VULKAN=ON" ;;
    cpu) backend="" ;;
    *) echo "cuda, vulkan or cpu, not $what" >&2; exit 2 ;;
esac
if [ -n "${PORTABLE:-}" ]; then
    backend="$backend -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF"
fi
if [ "$what" = vulkan ] && [ -n "${VULKAN_TOOLS:-}" ]; then
    tools="$(cd "$VULKAN_TOOLS" && pwd)"
    loader="$(ldconfig -p | sed -n 's/.*libvulkan\.so\.1 .*=> //p' | head -1)"
    backend="$backend -DVulkan_GLSLC_EXECUTABLE=$tools/glslc -DVulkan_INCLUDE_DIR=$tools/usr/include"
    backend="$backend -DVulkan_LIBRARY=$loader -DSPIRV-Headers_DIR=$tools/usr/share/cmake/SPIRV-Headers"
fi
generator=""; if command -v ninja >/dev/null; then generator="-G Ninja"; fi
# shellcheck disable=SC2086
cmake -S "$source" -B "$work/build" $generator -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON "-DCMAKE_BUILD_RPATH=\$ORIGIN" \
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF $backend ${FLAGS:-} >"$work/configure.log" 2>&1 \
    || { tail -30 "$work/configure.log" >&2; exit 1; }
cmake --build "$work/build" --target llama -j "${JOBS:-$(nproc)}" >"$work/build.log" 2>&1 \
    || { tail -30 "$work/build.log" >&2; exit 1; }
mkdir -p "$out/llama_cpp/lib"
cp "$work/source/llama_cpp/"*.py "$out/llama_cpp/"
find "$work/build" \( -name 'libllama.so*' -o -name 'libggml*.so*' \) -exec cp -P {} "$out/llama_cpp/lib/" \;
find "$out/llama_cpp/lib" -type f -exec strip --strip-unneeded {} +
echo "$out: $(du -sh "$out" | cut -f1); run with PYTHONPATH=$out"
