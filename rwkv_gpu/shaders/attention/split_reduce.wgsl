// y[t, h] = sum_r e^(top_r - top) x_r / sum_r e^(top_r - top) sum_r      over runs r of the context; COLUMNS vec4s of HEADS heads for a workgroup
// Each vec4 has PARTS lanes: each of them joins every PARTS-th run, PREFETCH of them loaded at a time.
// needs attention/partition: runs_of
// needs gate: gated
// needs sink: sink_of
@group(0) @binding(1) var<storage, read> x: array<vec4f>;           // [T, H, RUNS, N / 4 + 1]
@group(0) @binding(4) var<storage, read> places: array<vec2u>;      // [T] of position, row of all pages
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;     // [T, H, N / 4]

const N4 = N / 4u;
const SLICES = N4 / COLUMNS;                // workgroups that share a head
const PREFETCH = 4u;
const LOWEST = -1e38;

const_assert N4 % COLUMNS == 0u;
const_assert HEADS * PARTS * COLUMNS <= WG;

var<workgroup> found: array<vec4f, WG>;
var<workgroup> tops: array<vec2f, WG>;      // and what the exponentials sum to

fn run(group: u32, lane: u32) {
    let head = group / SLICES * HEADS + lane / (COLUMNS * PARTS);
    let part = lane / COLUMNS % PARTS;
    let column = group % SLICES * COLUMNS + lane % COLUMNS;
    if lane < HEADS * PARTS * COLUMNS && head / H < step.rows {
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
    if part > 0u || lane >= HEADS * PARTS * COLUMNS || head / H >= step.rows {
        return;
    }
    var most = tops[lane].x;
    for (var p = 1u; p < PARTS; p++) {
        most = max(most, tops[lane + p * COLUMNS].x);
    }
    var sum = 0.0;
    var total = vec4f();
    for (var p = 0u; p < PARTS; p++) {
        let fade = exp(tops[lane + p * COLUMNS].x - most);
        sum += fade * tops[lane + p * COLUMNS].y;
        total += fade * found[lane + p * COLUMNS];
    }
    y[head * N4 + column] = gated(total / (sum + sink_of(head, most)), head * N4 + column);
}
