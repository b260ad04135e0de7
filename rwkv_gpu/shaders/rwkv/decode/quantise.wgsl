// y is integers as well, which some lanes make of what all have found. By then nobody reads decays any more.
// needs kernel: decays_at
// needs lib/store_quantised: store_quantised
@group(0) @binding(9) var<storage, read_write> quantised: array<u32>;

const_assert N % 32u == 0u;
const_assert WG >= N4;

fn collect_output(value: f32, n: u32) { decays[n] = value; }

fn quantise_output(at: Place, lane: u32) {
    workgroupBarrier();
    if lane < N4 {
        store_quantised(decays_at(lane), 0u, at.token, at.head * N4 + lane, D4 / 8u, 1.0, true);
    }
}
