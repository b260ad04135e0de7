// S = decay(S) + d kᵀ, y = output(S r)      one workgroup per segment and head
//
// RWKV-6 and gated delta nets: the inputs say what r, k and v are, `decay` how S fades, `step` what d is and which S is read,
// `output` what becomes of y.
// needs decay: prepare_decay
// needs inputs: load_inputs
fn prepare(block: Block, lane: u32) {
    prepare_decay(block, lane);
    load_inputs(block, lane);
}
