//! Numbers as text, without the machinery of `std::fmt`: a request writes some twenty of them, and a formatter costs a
//! hundred and more instructions for each.

/// Appends a number in decimal digits.
pub fn push_number(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_out_as_the_formatter_writes_them() {
        for value in [0, 1, 9, 10, 99, 100, 12_345, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            push_number(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
