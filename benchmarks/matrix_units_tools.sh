#!/bin/sh
# A python whose Vulkan is Mesa's newest: its software driver has matrix units from 26.2 on, so their tests run on any machine.
#     benchmarks/matrix_units_tools.sh FOLDER [PYTHON]
#     FOLDER/python -m pytest --matrix-units tests/ops/test_linear.py -k matrix
#     FOLDER/python -m rwkv_gpu.cli.main devices
# PYTHON is .venv/bin/python by default. `debian_packages.sh` says what it needs. To undo it, delete FOLDER.
set -eu
here="$(cd "$(dirname "$0")/.." && pwd)"
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
python="${2:-$here/.venv/bin/python}"
"$here/benchmarks/debian_packages.sh" "$folder" mesa-vulkan-drivers libvulkan1

libraries="$(echo "$folder"/usr/lib/*-linux-gnu)"
cat >"$folder/driver.json" <<END
{"file_format_version": "1.0.1", "ICD": {"api_version": "1.4.0", "library_path": "$libraries/libvulkan_lvp.so"}}
END
# What python starts as sys.executable is to have this Vulkan, too: the trial of a driver is a process of its own.
mkdir -p "$folder/site"
echo "import sys; sys.executable = '$folder/python'" >"$folder/site/sitecustomize.py"
# Mesa's newest driver wants the newest C library, so python is started by that one's loader.
cat >"$folder/python" <<END
#!/bin/sh
export VK_DRIVER_FILES="$folder/driver.json" VK_ICD_FILENAMES="$folder/driver.json"
export PYTHONPATH="$folder/site\${PYTHONPATH:+:\$PYTHONPATH}"
exec $libraries/ld-linux-*.so.* --argv0 "$python" --library-path "$libraries:/lib/$(basename "$libraries"):/usr/lib/$(basename "$libraries")" \\
    "$(readlink -f "$python")" "\$@"
END
chmod +x "$folder/python"
"$folder/python" -c "from rwkv_gpu.gpu.adapters import list_adapters; print(*list_adapters(), sep='\n')"
