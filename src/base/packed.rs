//! Texts as they lie in the binary: deflated. `scripts/build.rs` packs them.

/// A text that is seldom asked for, and would be one part in fifty of the binary.
pub struct Packed(pub &'static [u8]);

impl Packed {
    /// The text.
    pub fn text(&self) -> String {
        let unpacked = miniz_oxide::inflate::decompress_to_vec(self.0).unwrap_or_default();
        String::from_utf8(unpacked).unwrap_or_default()
    }
}
