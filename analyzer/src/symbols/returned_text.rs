//! Reads the text that a C function returns from its code, without running it, if all that the
//! function does is to return a constant.

use super::elf::Elf;

/// Maximum length of the text.
const MOST_TEXT: u64 = 1 << 20;
/// Maximum number of bytes of code that are read.
const MOST_CODE: u64 = 64;

/// Returns the text that a function at a link-time address returns.
///
/// # Errors
/// Returns a message when the function does more than return a constant, or when the text cannot be
/// read.
pub(super) fn returned_text(elf: &Elf, address: u64) -> Result<String, &'static str> {
    let code = elf.bytes_at(address, MOST_CODE).ok_or("its code is not in the file")?;
    let constant = if elf.is_aarch64() { aarch64(&code, address) } else { x86_64(&code, address) };
    let text = constant.ok_or("it does more than return a constant text, which cannot be read without running it")?;
    let bytes = elf.bytes_at(text, MOST_TEXT).ok_or("its text is not in the file")?;
    let end = bytes.iter().position(|&byte| byte == 0).ok_or("its text has no end")?;
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Returns the address that x86-64 code returns. `endbr64`, `push rbp` and `mov rbp, rsp` may come
/// first, then the address in rax by `lea` or `mov`, then `pop rbp` and `ret`.
fn x86_64(code: &[u8], address: u64) -> Option<u64> {
    let mut at = 0;
    let mut value = None;
    loop {
        let rest = code.get(at..)?;
        let word = |from: usize| Some(i32::from_le_bytes(rest.get(from..from + 4)?.try_into().ok()?));
        let size = match rest {
            [0xf3, 0x0f, 0x1e, 0xfa, ..] => 4,
            [0x55 | 0x5d | 0xc9, ..] => 1,
            [0x48, 0x89, 0xe5, ..] => 3,
            [0x48, 0x8d, 0x05, ..] => {
                let next = address.wrapping_add(at as u64 + 7);
                value = Some(next.wrapping_add_signed(word(3)?.into()));
                7
            }
            [0xb8, ..] => {
                value = Some(u64::from(word(1)?.cast_unsigned()));
                5
            }
            [0x48, 0xc7, 0xc0, ..] => {
                value = Some(i64::from(word(3)?).cast_unsigned());
                7
            }
            [0xc3, ..] => return value,
            _ => return None,
        };
        at += size;
    }
}

/// Returns the address that 64-bit ARM code returns. `bti` or `paciasp` hints may come first, then
/// `adrp x0` and `add x0, x0, #n`, or `adr x0`, then `ret`.
fn aarch64(code: &[u8], address: u64) -> Option<u64> {
    let mut value: Option<u64> = None;
    for (at, bytes) in code.chunks_exact(4).enumerate() {
        let word = u32::from_le_bytes(bytes.try_into().ok()?);
        let here = address.wrapping_add(at as u64 * 4);
        let immediate = u64::from(word >> 29 & 3) | u64::from(word >> 5 & 0x7_ffff) << 2;
        let signed = (immediate << 43).cast_signed() >> 43;
        if word & 0xffff_f01f == 0xd503_201f {
            continue;
        } else if word & 0x9f00_001f == 0x9000_0000 {
            value = Some((here & !0xfff).wrapping_add_signed(signed << 12));
        } else if word & 0x9f00_001f == 0x1000_0000 {
            value = Some(here.wrapping_add_signed(signed));
        } else if word & 0xffc0_03ff == 0x9100_0000 {
            value = Some(value?.wrapping_add(u64::from(word >> 10 & 0xfff)));
        } else if word == 0xd65f_03c0 {
            return value;
        } else {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_read_from_code() {
        // endbr64; lea rax, [rip + 0x10]; ret
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xc3];
        assert_eq!(x86_64(&code, 0x1000), Some(0x101b));
        // push rbp; mov rbp, rsp; mov eax, 0x402000; pop rbp; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0xb8, 0x00, 0x20, 0x40, 0, 0x5d, 0xc3];
        assert_eq!(x86_64(&code, 0x1000), Some(0x40_2000));
        // call: not a constant
        assert_eq!(x86_64(&[0xe8, 0, 0, 0, 0, 0xc3], 0x1000), None);
        assert_eq!(x86_64(&[0x48, 0x8d], 0), None);
        // adrp x0, +0x1000; add x0, x0, #0x28; ret
        let code = [0xb000_0000_u32, 0x9100_a000, 0xd65f_03c0];
        let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(aarch64(&code, 0x1_0004), Some(0x1_1028));
    }
}
