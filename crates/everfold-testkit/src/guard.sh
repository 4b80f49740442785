# Outlives the test process: waits until it is gone, then ends the servers that run inside $FOLDER
# and removes $FOLDER. Started by guard.rs; standard input is a pipe only the test process holds.

trap '' HUP INT QUIT TERM PIPE
while read -r _; do :; done

# Process ids of the servers and tools that work inside the folder. Whoever else is in there, such
# as a developer's shell or pager, is not ours to end.
ours() {
    find /proc/[0-9]*/cwd -maxdepth 0 \
        \( -lname "$FOLDER" -o -lname "$FOLDER/*" -o -lname "$FOLDER (deleted)" \) 2>/dev/null |
        while IFS=/ read -r _ _ pid _; do
            case "$(name_of "$pid")" in
            postgres | pgbouncer | initdb | pg_ctl | pg_basebackup | setpriv) echo "$pid" ;;
            esac
        done
}

name_of() {
    cat "/proc/$1/comm" 2>/dev/null
}

# SIGQUIT lets the postmaster end its own processes and free its shared memory, which SIGKILL
# would leave in the system. Its processes get no signal from here: they go with it.
signal() {
    case "$(name_of "$1")" in
    postgres)
        if [ "$1" = "$(head -n 1 "$FOLDER/data/postmaster.pid" 2>/dev/null)" ]; then
            kill -QUIT "$1" 2>/dev/null
        fi
        ;;
    pgbouncer) kill -KILL "$1" 2>/dev/null ;;
    *) kill -TERM "$1" 2>/dev/null ;;
    esac
}

# Gently for about ten seconds, then by force.
end_ours() {
    rounds=0
    while pids=$(ours) && [ -n "$pids" ] && [ "$rounds" -lt 250 ]; do
        for pid in $pids; do
            if [ "$rounds" -lt 200 ]; then
                signal "$pid"
            else
                kill -KILL "$pid" 2>/dev/null
            fi
        done
        rounds=$((rounds + 1))
        sleep 0.05
    done
}

# A tool may have been on its way into the folder during the first pass. Once the folder is removed
# none can enter, so whatever got in is seen by the second pass.
end_ours
rm -rf -- "$FOLDER"
end_ours
rm -rf -- "$FOLDER"
