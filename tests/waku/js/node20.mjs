// What Node 20 lacks of what the library's dependencies use; Node 22, which the library asks for,
// has it.
Promise.withResolvers ??= function () {
    const result = {};
    result.promise = new this((resolve, reject) => Object.assign(result, { resolve, reject }));
    return result;
};
