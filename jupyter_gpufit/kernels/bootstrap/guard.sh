# Read by a shell that starts a job (". guard/guard.sh"), beside whose script `guard` is: what memory_guard.hand_on does.
case "${GPUFIT_MEMORY_GUARD:-1}" in
0 | [Oo][Ff][Ff] | [Nn][Oo] | [Ff][Aa][Ll][Ss][Ee]) ;;
*)
    if [ -n "${GPUFIT_MEMORY_FRACTION:-}" ]; then
        if [ -z "${XLA_PYTHON_CLIENT_MEM_FRACTION+x}${XLA_CLIENT_MEM_FRACTION+x}" ]; then
            export XLA_PYTHON_CLIENT_MEM_FRACTION="$GPUFIT_MEMORY_FRACTION"
            export XLA_PYTHON_CLIENT_PREALLOCATE="${XLA_PYTHON_CLIENT_PREALLOCATE-false}"
        fi
        export TF_FORCE_GPU_ALLOW_GROWTH="${TF_FORCE_GPU_ALLOW_GROWTH-true}"
        export PYTHONPATH="${0%/*}/guard${PYTHONPATH:+:$PYTHONPATH}"
    fi
    ;;
esac
