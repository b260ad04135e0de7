// What a row sees, cut into runs of a multiple of GRAIN positions: as many to each as the length wants. Up to ONE_RUN positions
// are one.
// needs reach: first_seen
// needs run count: most_runs
struct Cut {
    start: u32,
    end: u32,   // behind the last position; not behind `start` where there is nothing
}

// Run `number` of what rows from position `first` to `last` see.
fn cut_of(first: u32, last: u32, number: u32) -> Cut {
    let seen = first_seen(first);
    let base = seen / GRAIN * GRAIN;
    let size = run_size(last + 1u - base);
    return Cut(max(seen, base + number * size), min(last + 1u, base + (number + 1u) * size));
}

fn run_size(length: u32) -> u32 {
    let runs = most_runs(length);
    let each = (length + runs * GRAIN - 1u) / (runs * GRAIN) * GRAIN;
    return select(each, ONE_RUN, length <= ONE_RUN);
}

// How many runs there are at a position.
fn runs_of(position: u32) -> u32 {
    let length = position + 1u - first_seen(position) / GRAIN * GRAIN;
    let size = run_size(length);
    return (length + size - 1u) / size;
}
