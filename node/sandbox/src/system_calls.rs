//! The system call filter of a worker and of a compile child: a list of calls, some of them
//! narrowed by an argument; anything else is refused.

use std::collections::BTreeMap;
use std::error::Error;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// A call that is allowed where the argument of this index compares so with the value. A call that
/// is narrowed twice is allowed where one of both holds.
pub(crate) type ArgumentRule = (i64, u8, SeccompCmpOp, u64);

/// Installs the filter, on every thread there is.
pub(crate) fn install(
    allowed: &[i64],
    narrowed: &[ArgumentRule],
    refusal: SeccompAction,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        allowed.iter().map(|call| (*call, Vec::new())).collect();
    for (call, argument, operator, value) in narrowed {
        let width = SeccompCmpArgLen::Dword;
        let condition = SeccompCondition::new(*argument, width, operator.clone(), *value)?;
        rules.entry(*call).or_default().push(SeccompRule::new(vec![condition])?);
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let program: BpfProgram =
        SeccompFilter::new(rules, refusal, SeccompAction::Allow, arch)?.try_into()?;
    Ok(seccompiler::apply_filter_all_threads(&program)?)
}
