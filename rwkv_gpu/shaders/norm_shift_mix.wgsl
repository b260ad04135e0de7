// y_i[t] = xx[t] + (xx[t - 1] - xx[t]) · mix_i, xx = layer_norm(x)      one workgroup per row t, which norms both its rows
@group(0) @binding(1) var<storage, read> x: array<vec4f>;               // [T, D / 4]
@group(0) @binding(2) var<storage, read> weight: array<vec4f>;          // [D / 4]
@group(0) @binding(3) var<storage, read> bias: array<vec4f>;            // [D / 4]
@group(0) @binding(4) var<storage, read> mix: array<vec4f>;             // [MIXES, D / 4]
@group(0) @binding(5) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(6) var<storage, read> row_segment: array<u32>;       // [T]
@group(0) @binding(7) var<storage, read_write> state: array<vec4f>;     // [states, D / 4], the x that stands before the first row
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;         // [MIXES, T, D / 4], a stack

const_assert D % 4u == 0u;
const D4 = D / 4u;

fn run(group: u32, lane: u32) {
    let t = group;
    if t >= step.rows {
        return;
    }
    let segment = segments[row_segment[t]];
    let first = t == segment.first;
    let source = segment.source * D4;
    let replaced = segment.written * D4;

    var sums = vec2f();                 // of x[t] and of the row before it
    for (var d = lane; d < D4; d += WG) {
        sums += vec2f(total(x[t * D4 + d]), total(before(t, first, source, d)));
    }
    let mean = vec2f(reduce_add(sums.x, lane), reduce_add(sums.y, lane)) / f32(D);
    var squares = vec2f();
    for (var d = lane; d < D4; d += WG) {
        let a = x[t * D4 + d] - mean.x;
        let b = before(t, first, source, d) - mean.y;
        squares += vec2f(dot(a, a), dot(b, b));
    }
    let scale = inverseSqrt(vec2f(reduce_add(squares.x, lane), reduce_add(squares.y, lane)) / f32(D) + EPS);

    // The first row's workgroup is the only one that touches the states, each lane its own elements: read, then replaced.
    let fresh = first && segment.start == 0u;
    let last = t + segment.count - 1u;
    for (var d = lane; d < D4; d += WG) {
        let xx = (x[t * D4 + d] - mean.x) * scale.x * weight[d] + bias[d];
        var previous = vec4f();
        if !fresh {
            previous = (before(t, first, source, d) - mean.y) * scale.y * weight[d] + bias[d];
        }
        for (var i = 0u; i < MIXES; i++) {
            y[i * apart(D4) + t * D4 + d] = xx + (previous - xx) * mix[i * D4 + d];
        }
        if first {
            state[replaced + d] = x[last * D4 + d];
        }
    }
}

fn before(t: u32, first: bool, source: u32, d: u32) -> vec4f {
    if first {
        return state[source + d];
    }
    return x[(t - 1u) * D4 + d];
}

fn total(v: vec4f) -> f32 { return dot(v, vec4f(1.0)); }
