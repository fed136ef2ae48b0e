"""The environment in the shapes of other libraries, one module for each; a library is imported only by its own.

skrl reads ``tasks.env.Env`` as it is: ``skrl.envs.wrappers.torch.wrap_env(env, wrapper="isaaclab")``.
"""
