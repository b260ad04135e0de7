// RWKV-4's average of values, one lane per segment and channel. Sums are scaled by e^-m, m the largest exponent so far.
// needs lib/step: kept_state
@group(0) @binding(1) var<storage, read> r: array<f32>;                 // [T, D]
@group(0) @binding(2) var<storage, read> k: array<f32>;                 // [T, D]
@group(0) @binding(3) var<storage, read> v: array<f32>;                 // [T, D]
@group(0) @binding(4) var<storage, read> vectors: array<f32>;           // the decay and the bonus, [D] each
@group(0) @binding(5) var<storage, read> segments: array<Segment>;      // [S]
@group(0) @binding(6) var<storage, read_write> state: array<f32>;       // [states, 3, D]: both sums, and m
@group(0) @binding(7) var<storage, read_write> y: array<f32>;           // [T, D]

fn store(number: u32, channel: u32, s: vec3f) {
    for (var i = 0u; i < 3u; i++) {
        state[(3u * number + i) * D + channel] = s[i];
    }
}

// Adds v, weighted by e^k, to the sums.
fn added(s: vec3f, k: f32, v: f32) -> vec3f {
    let m = max(s.z, k);
    return vec3f(s.xy * exp(s.z - m) + vec2f(v, 1.0) * exp(k - m), m);
}

fn run(group: u32, lane: u32) {
    let channel = group % ACROSS * WG + lane;
    if group / ACROSS >= step.segments || channel >= D {
        return;
    }
    let segment = segments[group / ACROSS];
    let decay = exp(vectors[channel]);
    let bonus = vectors[D + channel];
    var s = vec3f(0.0, 0.0, -1e30);
    if segment.start > 0u {
        let from_state = 3u * segment.source * D + channel;
        s = vec3f(state[from_state], state[from_state + D], state[from_state + 2u * D]);
    }
    for (var t = segment.first; t < segment.first + segment.count; t++) {
        let at = t * D + channel;
        let seen = added(s, k[at] + bonus, v[at]);
        y[at] = r[at] * seen.x / seen.y;
        s = added(vec3f(s.xy, s.z - decay), k[at], v[at]);
        if t - segment.first < segment.kept {
            store(kept_state(segment, t - segment.first), channel, s);
        }
    }
    store(segment.written, channel, s);
}
