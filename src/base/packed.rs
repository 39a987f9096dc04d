//! Texts that are compressed in the binary. `scripts/build.rs` packs them.

/// A text that is rarely needed. All of them uncompressed would be one fiftieth of the binary.
pub struct Packed(pub &'static [u8]);

impl Packed {
    /// Returns the text.
    pub fn text(&self) -> String {
        let unpacked = miniz_oxide::inflate::decompress_to_vec(self.0).unwrap_or_default();
        String::from_utf8(unpacked).unwrap_or_default()
    }
}
