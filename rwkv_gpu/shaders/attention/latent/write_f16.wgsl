// 8 dims of a latent to its page, as halves: two to a word.
fn put8(i: u32, x: Eight) {
    keys[i] = vec4u(
        pack2x16float(x.low.xy), pack2x16float(x.low.zw),
        pack2x16float(x.high.xy), pack2x16float(x.high.zw),
    );
}
