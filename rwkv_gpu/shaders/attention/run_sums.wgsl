// Reduces the runs of the context: RUN_LANES lanes share COLUMNS neighbouring vec4s of a head, and each has every
// RUN_LANES-th run, loading RUNS_AT_ONCE of them at a time.
const LOWEST = -1e38;

// The sum of runs of a head, which is to be divided by the sum of their exponentials.
struct RunSums {
    total: vec4f,
    top: f32,       // the maximum that they are relative to
    sum: f32,
}

var<workgroup> found: array<vec4f, WG>;
var<workgroup> tops: array<vec2f, WG>;      // by lane: the maximum and the sum of the exponentials

// Adds up a lane's share of the runs in workgroup memory; x is [T, H, RUNS, N4 + 1], and a run ends with its maximum and sum.
fn sum_runs(lane: u32, head: u32, column: u32, part: u32, runs: u32) {
    var top = LOWEST;
    var sum = 0.0;
    var total = vec4f();
    for (var first = part; first < runs; first += RUN_LANES * RUNS_AT_ONCE) {
        var scale: array<vec2f, RUNS_AT_ONCE>;
        var value: array<vec4f, RUNS_AT_ONCE>;
        var most = top;
        for (var a = 0u; a < RUNS_AT_ONCE; a++) {
            let at = (head * RUNS + min(first + a * RUN_LANES, runs - 1u)) * (N4 + 1u);
            scale[a] = x[at + N4].xy;
            value[a] = x[at + column];
        }
        for (var a = 0u; a < RUNS_AT_ONCE; a++) {
            most = max(most, scale[a].x);
        }
        let fade = exp(top - most);
        sum *= fade;
        total *= fade;
        for (var a = 0u; a < RUNS_AT_ONCE; a++) {
            let weight = select(0.0, exp(scale[a].x - most), first + a * RUN_LANES < runs);
            sum += weight * scale[a].y;
            total += select(vec4f(), weight * value[a], scale[a].y > 0.0);   // a run without visible positions has no value
        }
        top = most;
    }
    found[lane] = total;
    tops[lane] = vec2f(top, sum);
}

// Merges the sums of all lanes with the same vec4. Call it after a barrier, in a lane of the first part.
fn all_parts(lane: u32) -> RunSums {
    var all = RunSums(vec4f(), tops[lane].x, 0.0);
    for (var p = 1u; p < RUN_LANES; p++) {
        all.top = max(all.top, tops[lane + p * COLUMNS].x);
    }
    for (var p = 0u; p < RUN_LANES; p++) {
        let fade = exp(tops[lane + p * COLUMNS].x - all.top);
        all.sum += fade * tops[lane + p * COLUMNS].y;
        all.total += fade * found[lane + p * COLUMNS];
    }
    return all;
}
