// y[t, h] = sum_r e^(top_r - top) x_r / sum_r e^(top_r - top) sum_r      over runs r of the context; HEADS heads for a workgroup
// A head has a lane for each vec4, PARTS times: each part joins every PARTS-th run, PREFETCH of them loaded at a time.
// needs attention/partition: runs_of
// needs gate: gated
// needs sink: sink_of
@group(0) @binding(1) var<storage, read> x: array<vec4f>;           // [T, H, RUNS, N / 4 + 1]
@group(0) @binding(4) var<storage, read> places: array<vec2u>;      // [T] of position, row of all pages
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;     // [T, H, N / 4]

const N4 = N / 4u;
const PREFETCH = 4u;
const LOWEST = -1e38;

var<workgroup> found: array<vec4f, WG>;
var<workgroup> tops: array<vec2f, WG>;      // and what the exponentials sum to

fn run(group: u32, lane: u32) {
    let head = group * HEADS + lane / (N4 * PARTS);
    let part = lane / N4 % PARTS;
    let column = lane % N4;
    if lane < HEADS * PARTS * N4 && head / H < step.rows {
        let runs = runs_of(places[head / H].x);
        var top = LOWEST;
        var sum = 0.0;
        var total = vec4f();
        for (var first = part; first < runs; first += PARTS * PREFETCH) {
            var scale: array<vec2f, PREFETCH>;
            var value: array<vec4f, PREFETCH>;
            var most = top;
            for (var a = 0u; a < PREFETCH; a++) {
                let at = (head * RUNS + min(first + a * PARTS, runs - 1u)) * (N4 + 1u);
                scale[a] = x[at + N4].xy;
                value[a] = x[at + column];
            }
            for (var a = 0u; a < PREFETCH; a++) {
                most = max(most, scale[a].x);
            }
            let fade = exp(top - most);
            sum *= fade;
            total *= fade;
            for (var a = 0u; a < PREFETCH; a++) {
                let weight = select(0.0, exp(scale[a].x - most), first + a * PARTS < runs);
                sum += weight * scale[a].y;
                total += weight * value[a];
            }
            top = most;
        }
        found[lane] = total;
        tops[lane] = vec2f(top, sum);
    }
    workgroupBarrier();
    if part > 0u || lane >= HEADS * PARTS * N4 || head / H >= step.rows {
        return;
    }
    var most = tops[lane].x;
    for (var p = 1u; p < PARTS; p++) {
        most = max(most, tops[lane + p * N4].x);
    }
    var sum = 0.0;
    var total = vec4f();
    for (var p = 0u; p < PARTS; p++) {
        let fade = exp(tops[lane + p * N4].x - most);
        sum += fade * tops[lane + p * N4].y;
        total += fade * found[lane + p * N4];
    }
    y[head * N4 + column] = gated(total / (sum + sink_of(head, most)), head * N4 + column);
}
