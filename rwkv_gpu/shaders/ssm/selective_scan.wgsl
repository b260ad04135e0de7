// S = S e^(dt A) + dt x B, y = (S · C + D x) silu(z)      one lane per segment and channel, whose row of S stays in registers
// needs lib/step: kept_state
@group(0) @binding(1) var<storage, read> x: array<f32>;                 // [T, C]
@group(0) @binding(2) var<storage, read> dt: array<f32>;                // [T, C]
@group(0) @binding(3) var<storage, read> bc: array<vec4f>;              // B and C [T, 2, N / 4]
@group(0) @binding(4) var<storage, read> projected: array<f32>;         // [T, STRIDE], z [C] last
@group(0) @binding(5) var<storage, read> parameters: array<f32>;        // A [C, N], the bias of dt and D, [C] each
@group(0) @binding(6) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(7) var<storage, read_write> state: array<vec4f>;     // [states, C, N / 4]
@group(0) @binding(8) var<storage, read_write> y: array<f32>;           // [T, C]

const_assert N % 4u == 0u;
const N4 = N / 4u;

fn run(group: u32, lane: u32) {
    let channel = group % ACROSS * WG + lane;
    if group / ACROSS >= step.segments || channel >= C {
        return;
    }
    let segment = segments[group / ACROSS];
    let bias = parameters[C * N + channel];
    let skip = parameters[C * N + C + channel];
    var a: array<vec4f, N4>;
    var s: array<vec4f, N4>;
    for (var i = 0u; i < N4; i++) {
        let at = channel * N + 4u * i;
        a[i] = vec4f(parameters[at], parameters[at + 1u], parameters[at + 2u], parameters[at + 3u]);
        s[i] = vec4f();
        if segment.start > 0u {
            s[i] = state[(segment.source * C + channel) * N4 + i];
        }
    }
    for (var t = segment.first; t < segment.first + segment.count; t++) {
        let raw = dt[t * C + channel] + bias;
        let width = select(log(1.0 + exp(raw)), raw, raw > 20.0);
        let here = x[t * C + channel];
        let z = projected[(t + 1u) * STRIDE - C + channel];
        var sums = vec4f();
        for (var i = 0u; i < N4; i++) {
            s[i] = fma(s[i], exp(width * a[i]), width * here * bc[2u * t * N4 + i]);
            sums = fma(s[i], bc[(2u * t + 1u) * N4 + i], sums);
        }
        y[t * C + channel] = fma(skip, here, dot(sums, vec4f(1.0))) * z / (1.0 + exp(-z));
        if t - segment.first < segment.kept {
            let kept = kept_state(segment, t - segment.first);
            for (var i = 0u; i < N4; i++) {
                state[(kept * C + channel) * N4 + i] = s[i];
            }
        }
    }
    for (var i = 0u; i < N4; i++) {
        state[(segment.written * C + channel) * N4 + i] = s[i];
    }
}
