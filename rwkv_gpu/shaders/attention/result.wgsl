// How a workgroup writes its sums.

//# last_workgroup
// A workgroup has seen one run of the context. The last one to finish joins the runs of its heads, so no workgroup
// waits.
// needs answer: answer; gate: gated; lib/last_workgroup: count_done; sink: sink_of
@group(0) @binding(9) @coherent var<storage, read_write> found: array<vec4f>;   // [T, H, RUNS, N / 4 + 1]

var<workgroup> met: array<vec2f, SHARED * RUNS>;    // the maximum and the sum of exponentials of each run

fn write(head: u32, number: u32, column: u32, x: vec4f, top_and_sum: vec2f) {
    if run_count == 1u {
        let i = head * N4 + column;
        answer(i, gated(x / (top_and_sum.y + sink_of(head, top_and_sum.x)), i));
        return;
    }
    let at = (head * RUNS + number) * (N4 + 1u);
    found[at + column] = x;
    if column == 0u {
        found[at + N4] = vec4f(top_and_sum, 0.0, 0.0);
    }
}

// Called after a workgroup has written all its results for heads from `first` on.
fn finish(first: u32, lane: u32) {
    if run_count == 1u {
        return;
    }
    count_done(first / SHARED, run_count, lane);
    if is_last.x == 0u {
        return;
    }
    for (var i = lane; i < SHARED * run_count; i += WG) {
        met[i] = found[((first + i / run_count) * RUNS + i % run_count) * (N4 + 1u) + N4].xy;
    }
    workgroupBarrier();
    for (var i = lane; i < SHARED * N4; i += WG) {
        answer(first * N4 + i, gated(over_runs(first, i / N4, i % N4), first * N4 + i));
    }
}

// One vec4 of a head, summed over all its runs.
fn over_runs(first: u32, head: u32, column: u32) -> vec4f {
    var most = LOWEST;
    for (var r = 0u; r < run_count; r++) {
        most = max(most, met[head * run_count + r].x);
    }
    var sum = 0.0;
    var total = vec4f();
    for (var base = 0u; base < run_count; base += AT_ONCE) {
        var x: array<vec4f, AT_ONCE>;
        for (var n = 0u; n < AT_ONCE; n++) {
            x[n] = found[((first + head) * RUNS + min(base + n, run_count - 1u)) * (N4 + 1u) + column];
        }
        for (var n = 0u; n < AT_ONCE; n++) {
            let run = met[head * run_count + min(base + n, run_count - 1u)];
            let weight = select(0.0, exp(run.x - most), base + n < run_count);
            sum += weight * run.y;
            total += weight * x[n];
        }
    }
    return total / (sum + sink_of(first + head, most));
}

//# partial
// Each workgroup stores the result of its run: the unscaled sum, then the maximum and the sum of exponentials.
fn write(head: u32, number: u32, column: u32, x: vec4f, top_and_sum: vec2f) {
    let at = (head * RUNS + number) * (N4 + 1u);
    y[at + column] = x;
    if column == 0u {
        y[at + N4] = vec4f(top_and_sum, 0.0, 0.0);
    }
}

fn finish(_first: u32, _lane: u32) {}

//# whole: A workgroup has seen the whole context, so its sums are complete.
// needs answer: answer; gate: gated; sink: sink_of
fn write(head: u32, _run: u32, column: u32, x: vec4f, top_and_sum: vec2f) {
    let i = head * N4 + column;
    answer(i, gated(x / (top_and_sum.y + sink_of(head, top_and_sum.x)), i));
}

fn finish(_first: u32, _lane: u32) {}
