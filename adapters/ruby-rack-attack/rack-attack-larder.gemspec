# frozen_string_literal: true

Gem::Specification.new do |spec|
  spec.name = 'rack-attack-larder'
  spec.version = '0.1.0'
  spec.summary = "Larder's rate limits for Rack::Attack"
  spec.authors = ['The Larder authors']
  spec.license = 'Apache-2.0'
  spec.files = Dir['lib/**/*.rb'] + ['README.md']
  spec.required_ruby_version = '>= 3.0'
  spec.add_dependency 'rack-attack', '~> 6.6'
end
