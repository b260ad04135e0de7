// The token of a row, as the step gives it or, where bit 31 is set, as a slot sampled it last.
@group(0) @binding(2) var<storage, read> ids: array<u32>;       // [T]
@group(0) @binding(4) var<storage, read> sampled: array<u32>;      // [S + ...]

fn token_of(t: u32) -> u32 {
    let id = ids[t];
    if id >> 31u == 1u {
        return sampled[id & 0x7fffffffu];
    }
    return id;
}
