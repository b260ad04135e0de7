fn emit_statistics(_row: u32, _stores: bool, _block: u32, _rows: u32, _lane: u32) {}
