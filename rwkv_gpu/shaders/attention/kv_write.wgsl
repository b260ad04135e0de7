// q[t, h] = turn(norm(q[t, h])) · SCALE, K[place] = turn(norm(k[t, h])), V[place] = v[t, h]      one lane per 8 dims of a head of q or k
// needs attention/heads: turned8, write_kv
@group(0) @binding(7) var<storage, read_write> q: array<vec4f>;     // [T, H, N / 4]

const N8 = N / 8u;
const HEADS = select(H, H + KV, OWN_KEYS);

fn run(group: u32, lane: u32) {
    let i = group * WG + lane;
    let t = i / N8 / HEADS;
    let head = i / N8 % HEADS;
    let c = i % N8;
    if t >= step.rows {
        return;
    }
    let x = turned8(t, head, c);
    if head >= H {
        write_kv(t, head - H, c, x);
        return;
    }
    let at = ((t * H + head) * N8 + c) * 2u;
    q[at] = x.low;
    q[at + 1u] = x.high;
}
