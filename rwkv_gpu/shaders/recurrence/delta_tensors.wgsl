// β and decays of a gated delta net, computed by products, and the key head of each value head
@group(0) @binding(2) var<storage, read> betas: array<f32>;             // [T, GATES], one of each head
@group(0) @binding(3) var<storage, read> vectors: array<vec4f>;         // parameters, as the decay has them
@group(0) @binding(7) var<storage, read> decays: array<f32>;            // [T, DECAYS]: one for each head, or for each of its channels

const K4 = KEY_HEADS * N4;          // vec4s of q in a row, and of k
const ROW4 = 2u * K4 + D4;          // vec4s of q, k and v in a row

fn key_head_of(head: u32) -> u32 {
    if GROUPED != 0u {
        return head / (H / KEY_HEADS);
    }
    return head % KEY_HEADS;
}

// True for the first of the heads that share a key head.
fn key_is_first(head: u32) -> bool {
    if GROUPED != 0u {
        return head % (H / KEY_HEADS) == 0u;
    }
    return head < KEY_HEADS;
}

// The place of a head's β (0) or decay (1) in a row. Both may share a tensor: for each key head its βs, then its decays.
fn place_of(head: u32, which: u32) -> u32 {
    if SHARED != 0u {
        let each = H / KEY_HEADS;
        return head / each * 2u * each + which * each + head % each;
    }
    return head;
}

fn decay_input(row: u32, d: u32) -> f32 {
    return decays[row * DECAYS + place_of(d, 1u)];
}

// The β of a head.
fn rate_at(row: u32, head: u32) -> f32 {
    return 1.0 / (1.0 + exp(-betas[row * GATES + place_of(head, 0u)]));
}

// One number of a vec4. Drivers merge the loads of neighbouring lanes into one load of the vec4.
fn parameter_at(i: u32) -> f32 { return vectors[i / 4u][i % 4u]; }
