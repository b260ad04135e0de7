// y[t, h] = sum_r e^(top_r - top) x_r / sum_r e^(top_r - top) sum_r      over runs r of the context; one lane per vec4 of y
@group(0) @binding(1) var<storage, read> x: array<vec4f>;           // [T, H, RUNS, N / 4 + 1]
@group(0) @binding(2) var<storage, read> places: array<vec2u>;      // [T] of position, row of all pages
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>;     // [T, H, N / 4]

const N4 = N / 4u;

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let head = i / N4;
    if head / H >= step.rows {
        return;
    }
    let position = places[head / H].x;
    let first = (position - min(position, WINDOW - 1u)) / RUN;
    let last = position / RUN;
    var top = -1e38;
    for (var r = first; r <= last; r++) {
        top = max(top, x[(head * RUNS + r) * (N4 + 1u) + N4].x);
    }
    var sum = 0.0;
    var total = vec4f();
    for (var r = first; r <= last; r++) {
        let at = (head * RUNS + r) * (N4 + 1u);
        let scale = exp(x[at + N4].x - top);
        sum += scale * x[at + N4].y;
        total += scale * x[at + i % N4];
    }
    y[i] = total / sum;
}
