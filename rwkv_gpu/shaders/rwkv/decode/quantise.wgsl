// y is integers as well, which some lanes make of what all have found. By then nobody reads decays any more.
@group(0) @binding(9) var<storage, read_write> quantised: array<u32>;

const_assert N % 32u == 0u;
const_assert WG >= N4;

fn give(value: f32, n: u32) { decays[n] = value; }

fn given(at: Place, lane: u32) {
    workgroupBarrier();
    if lane < N4 {
        lay(decays_at(lane), 0u, at.token, at.head * N4 + lane, D4 / 8u, 1.0, true);
    }
}
