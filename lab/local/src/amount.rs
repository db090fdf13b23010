//! Amounts as people write them on a command line.

/// Most cycles with which a principal may begin: the ledger's own holding still pays them to a
/// million accounts.
const CYCLES_MAX: u128 = 1 << 80;
const E8S: u64 = 100_000_000;

/// `5000000`, `5_000_000`, `5m`, `1000t`.
pub(crate) fn parse_cycles(text: &str) -> Result<u128, String> {
    let factors = [('k', 1_000), ('m', 1_000_000), ('b', 1_000_000_000), ('t', 1_000_000_000_000)];
    let lower = text.to_ascii_lowercase();
    let scaled = factors.iter().find_map(|(suffix, factor)| {
        lower.strip_suffix(*suffix).map(|digits| (digits.to_owned(), *factor))
    });
    let (digits, factor): (String, u128) = scaled.unwrap_or((lower, 1));
    let number: u128 = digits
        .replace('_', "")
        .parse()
        .map_err(|_| format!("{text} is not a number of cycles, such as 1000t"))?;
    number
        .checked_mul(factor)
        .filter(|amount| *amount <= CYCLES_MAX)
        .ok_or_else(|| format!("at most {CYCLES_MAX} cycles"))
}

/// Whole ICP, in e8s.
pub(crate) fn parse_icp(text: &str) -> Result<u64, String> {
    let number: u64 = text
        .replace('_', "")
        .parse()
        .map_err(|_| format!("{text} is not a whole number of ICP"))?;
    // 50,000 accounts that begin with it stay below 2^64 e8s together.
    let most = u64::MAX / 50_000 / E8S;
    if number > most {
        return Err(format!("at most {most} ICP"));
    }
    Ok(number * E8S)
}

/// Digits in groups of three, as they can be written too.
pub(crate) fn grouped(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

pub(crate) const fn as_icp(e8s: u64) -> u64 {
    e8s / E8S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_written_and_bounded() {
        assert_eq!(parse_cycles("1000T"), Ok(1_000_000_000_000_000));
        assert_eq!(parse_cycles("5_000k"), Ok(5_000_000));
        assert_eq!(parse_cycles("7"), Ok(7));
        assert_eq!(parse_cycles(&CYCLES_MAX.to_string()), Ok(CYCLES_MAX));
        for wrong in ["", "t", "-1", "1.5t", "1208925819614629174706177", &"9".repeat(60)] {
            assert!(parse_cycles(wrong).is_err(), "{wrong}");
        }
        assert_eq!(grouped(1_234_567), "1_234_567");
        assert_eq!(
            (grouped(0), grouped(999), grouped(1000)),
            ("0".into(), "999".into(), "1_000".into())
        );
        assert_eq!(parse_icp("1_000_000"), Ok(100_000_000_000_000));
        assert_eq!(parse_icp("3689348"), Ok(368_934_800_000_000));
        for wrong in ["", "0.5", "3689349", "18446744073709551616"] {
            assert!(parse_icp(wrong).is_err(), "{wrong}");
        }
    }
}
