// A bit for each token of a row, set where it is allowed.
@group(0) @binding(4) var<storage, read> masks: array<u32>;     // [R, ceil(V / 32)]

fn allowed(row: u32, token: u32) -> bool {
    return ((masks[row * ((V + 31u) / 32u) + token / 32u] >> (token % 32u)) & 1u) == 1u;
}
