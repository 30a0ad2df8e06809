//! Disassembles address ranges with `objdump`, if that is installed.

use super::elf::Elf;
use std::process::{Command, Stdio};

/// An instruction as objdump prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// Address in the ELF file.
    pub(super) address: u64,
    /// Bytes, in the format of objdump.
    pub(super) bytes: String,
    /// Mnemonic and operands of the instruction.
    pub(super) text: String,
}

/// Disassembles a range of a file. Returns `None` if objdump is not installed, fails, or does not
/// support the machine.
pub(super) fn disassemble(elf: &Elf, start: u64, end: u64) -> Option<Vec<Instruction>> {
    let output = Command::new("objdump")
        .env("LC_ALL", "C")
        .args(["--disassemble", "--wide"])
        .arg(format!("--start-address={start:#x}"))
        .arg(format!("--stop-address={end:#x}"))
        .arg("--")
        .arg(&elf.path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let instructions: Vec<Instruction> = text.lines().filter_map(instruction).collect();
    (output.status.success() && !instructions.is_empty()).then_some(instructions)
}

/// Parses a line such as `  401136:\t55                   \tpush   %rbp`. Other lines are headings.
fn instruction(line: &str) -> Option<Instruction> {
    let (address, rest) = line.trim_start().split_once(":\t")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let (bytes, text) = rest.split_once('\t')?;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(Instruction { address, bytes: bytes.trim_end().to_string(), text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_lines_of_objdump_are_parsed() {
        let line = "  401136:\t48 8b 45 f8          \tmov    -0x8(%rbp),%rax";
        let expected =
            Instruction { address: 0x40_1136, bytes: "48 8b 45 f8".into(), text: "mov -0x8(%rbp),%rax".into() };
        assert_eq!(instruction(line), Some(expected));
        for other in
            ["", "0000000000401136 <main>:", "Disassembly of section .text:", "a.out:     file format elf64-x86-64"]
        {
            assert_eq!(instruction(other), None);
        }
    }
}
